"""Plan, resume and run an experiment; the only wing that knows all workers."""
