"""The wire formats of clients: parses and edits bodies, observes streams, writes errors. Pure: bytes in, values out."""
