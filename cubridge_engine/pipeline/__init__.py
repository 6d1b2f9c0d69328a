"""Whole jobs, each returning a value of the JSON contract (`results`).

``adapt.adapt``, ``check.verify_kernel``, ``readings.lift_kernel``, ``readings.read_spec_file``; ``tasks`` holds their
forms for the worker process. Nothing is imported here, so that reading a spec does not load the kernel rooms, nor the
other way round.
"""
