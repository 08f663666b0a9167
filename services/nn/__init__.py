"""Layers and model parts, on torch, that engines of several services share."""
