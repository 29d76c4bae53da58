"""Aggregation of the rows of Spark tasks into a run's result: merged per second and phase, then medians and ratios.

result folder
    rows.parquet        all rows of all tasks (`ottla.bench.generators.rows`), with target, run and phase
    samples.parquet     processes and stores as seen from outside (`ottla.bench.targets.sampling`)
    events.json         what happened to the targets, and when
    seconds.parquet     rows, merged: one for each target, run, phase, load and second
    summary.json        figures of each run (`ottla.bench.report`)
"""
