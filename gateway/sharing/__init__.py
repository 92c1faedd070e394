"""What several processes that decide tell each other."""
