"""The agent that stays: waits for a change, scans, publishes what differs, until it is told to stop."""
