"""A short description of a machine -> the files and documents that such a machine would have."""
