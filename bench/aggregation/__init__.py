"""From the rows that Spark tasks yield to the result of a run: merged per second and per phase in Spark, then medians and ratios.

result folder
    rows.parquet        all rows of all tasks (`ottla.bench.generators.rows`), with target, run and phase
    samples.parquet     processes and stores as seen from outside (`ottla.bench.targets.sampling`)
    events.json         what happened to the targets, and when
    seconds.parquet     rows, merged: one for each target, run, phase, load and second
    summary.json        figures of each run (`ottla.bench.report`)
"""
