"""What is served: timm networks of the catalog, PixelModel around them, and the folder they are stored in.

Importing this package registers with timm the networks that timm does not have (`robustzoo.models.networks`).
"""

from robustzoo.models.architectures import build_network
from robustzoo.models.folder import ModelFolder, read_folder, read_recipe, write_folder
from robustzoo.models.pixel_model import PixelModel, pixel_model
from robustzoo.models.weights import verify_sha256

__all__ = [
    "ModelFolder",
    "PixelModel",
    "build_network",
    "pixel_model",
    "read_folder",
    "read_recipe",
    "verify_sha256",
    "write_folder",
]
