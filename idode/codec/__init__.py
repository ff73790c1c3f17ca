"""Lossless compression of images with a diffusion model: bits-back coding over its steps.

``compress`` has the functions for users, ``archive`` the work on many files, ``blocks`` the
scheme (docs/codec.md), ``container`` the file format.
"""
