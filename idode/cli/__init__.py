"""The commands of ``idode``: each has ``add_arguments(parser)`` and ``run(args) -> int``."""
