"""Facts -> one topology: what hangs below what, near which memory, and how sure that is. Pure."""
