"""Files that people and other programs write -> plain values. No Host."""
