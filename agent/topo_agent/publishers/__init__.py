"""Plain data -> the outside world."""
