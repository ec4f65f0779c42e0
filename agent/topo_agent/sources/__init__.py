"""Text and documents of a host -> facts; one file for each class of device."""
