"""What is served: timm networks of the catalog, PixelModel around them, and the folder they are stored in.

Importing this package registers with timm the networks that timm does not have (`robustzoo.models.networks`).
"""

from robustzoo.models.architectures import ArchitectureError, build_network
from robustzoo.models.folder import (
    FolderError,
    HashMismatch,
    read_folder,
    read_recipe,
    verify_sha256,
    write_folder,
)
from robustzoo.models.pixel_model import PixelModel, PixelRangeError, pixel_model

__all__ = [
    "ArchitectureError",
    "FolderError",
    "HashMismatch",
    "PixelModel",
    "PixelRangeError",
    "build_network",
    "pixel_model",
    "read_folder",
    "read_recipe",
    "verify_sha256",
    "write_folder",
]
