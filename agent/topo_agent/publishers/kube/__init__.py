"""The API server: a client, and what the agent writes there."""
