-- Every lane that has ever had a job.
SELECT lane, queue, kind, priority, partitioned FROM redrive.lanes
