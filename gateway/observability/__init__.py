"""What the gateway shows of itself: metrics and logs, as implementations of ``framework.Observer``."""
