"""Readers: the layouts in which data sets lie on disk, each as an ImageDataset."""
