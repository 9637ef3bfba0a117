-- How many ids there are before ?1: the last look of a walk, which has fewer than its bound.
SELECT count(*) FROM redrive_jobs WHERE id < ?1
