"""The models that these tests share with others."""

from tests.small_models import folder, linear, published  # noqa: F401
