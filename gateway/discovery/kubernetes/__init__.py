"""Endpoints that Kubernetes lists: an InferencePool's, those of a label selector, or a Service's.

Its API is asked by list, watch and diff over httpx: the client libraries go on from a version that the server has
forgotten, or do not tell what was deleted meanwhile.
"""
