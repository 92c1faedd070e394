"""``kvgate explain``: where a prompt would go now, or where a request went, and why."""
