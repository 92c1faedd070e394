"""``kvgate envoy``: prints a configuration of Envoy that fits a plugins.yaml, for Envoy in front and ``kvgate epp``
beside it.

Pure: ``document`` makes it of the configuration and of what the command line says. Begin reading there. Field names are
those of Envoy's API v3, and what Envoy does with them is held by tests/envoy.
"""
