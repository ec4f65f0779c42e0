"""Tests that need a real kernel, a server or another program."""
