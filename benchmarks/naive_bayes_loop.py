"""Algorithm 1 for the naive Bayes model of [JAGR22, Section 4], written by hand in NumPy."""

import numpy as np

NUM_CLASSES, NUM_FEATURES, NUM_LEVELS, CONCENTRATION = 5, 5, 3, 2.0
FEATURES = np.arange(NUM_FEATURES)


def contributions(records):
    """Counts of (feature, class, level); a record is (class, level of each feature)."""
    table = np.zeros((len(records), NUM_FEATURES, NUM_CLASSES, NUM_LEVELS))
    rows = np.arange(len(records))[:, None]
    table[rows, FEATURES, records[:, :1], records[:, 1:]] = 1
    return table.reshape(len(records), -1)


def sample_params(rng, records):
    counts = contributions(records).sum(axis=0).reshape(NUM_FEATURES, NUM_CLASSES, NUM_LEVELS)
    of_class = rng.standard_gamma(CONCENTRATION + counts[0].sum(axis=1))
    of_levels = rng.standard_gamma(CONCENTRATION + counts)
    return of_class / of_class.sum(), of_levels / of_levels.sum(axis=2, keepdims=True)


def sweep_by_record(rng, records, released, scale):
    """One iteration of Algorithm 1; changes ``records`` in place and returns the params."""
    of_class, of_levels = sample_params(rng, records)
    class_edges, level_edges = np.cumsum(of_class)[:-1], np.cumsum(of_levels, axis=2)[:, :, :-1]
    total = contributions(records).sum(axis=0).reshape(NUM_FEATURES, NUM_CLASSES, NUM_LEVELS)
    noisy = released.reshape(total.shape)
    distance = np.abs(noisy - total).sum()
    for i in range(len(records)):
        y = np.sum(rng.random() >= class_edges)
        levels = np.sum(rng.random(NUM_FEATURES)[:, None] >= level_edges[:, y], axis=1)
        new_total = total.copy()
        new_total[FEATURES, records[i, 0], records[i, 1:]] -= 1
        new_total[FEATURES, y, levels] += 1
        new_distance = np.abs(noisy - new_total).sum()
        if rng.standard_exponential() > (new_distance - distance) / scale:
            records[i, 0], records[i, 1:] = y, levels
            total, distance = new_total, new_distance
    return of_class, of_levels


def sweep_vectorised(rng, records, released, scale):
    """The same, with proposals, statistics and uniforms drawn in one call each."""
    of_class, of_levels = sample_params(rng, records)
    class_edges, level_edges = np.cumsum(of_class)[:-1], np.cumsum(of_levels, axis=2)[:, :, :-1]
    y = np.sum(rng.random(len(records))[:, None] >= class_edges, axis=1)
    uniforms = rng.random((len(records), NUM_FEATURES))
    levels = np.sum(uniforms[:, :, None] >= level_edges[FEATURES, y[:, None]], axis=2)
    proposals = np.column_stack([y, levels])
    current = contributions(records)
    changes = contributions(proposals) - current
    thresholds = scale * rng.standard_exponential(len(records))
    total = current.sum(axis=0)
    distance = np.abs(released - total).sum()
    for i in range(len(records)):
        new_total = total + changes[i]
        new_distance = np.abs(released - new_total).sum()
        if thresholds[i] > new_distance - distance:
            records[i], total, distance = proposals[i], new_total, new_distance
    return of_class, of_levels
