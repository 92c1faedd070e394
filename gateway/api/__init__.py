"""The wire formats that clients speak: parse, splice, watch, and say what went wrong. Pure: bytes in, values out."""
