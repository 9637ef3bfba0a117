-- Every lane that has ever had a job.
SELECT lane, queue, kind, priority FROM redrive.lanes
