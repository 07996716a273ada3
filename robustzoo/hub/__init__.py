"""Where weights come from: pinned download, and names resolved to models."""
