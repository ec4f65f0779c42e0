"""Commands that have a module of their own, and what all commands have in common. cli.py has the others."""
