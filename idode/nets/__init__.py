"""Networks: ``net(x, t, flag=None)`` with x of shape ``(B, *)`` and the time scaled to [0, 1].

A network knows nothing of schedules: whoever owns one scales its clock. All start as the
identity, and all take their random numbers from the generator they are given.
"""
