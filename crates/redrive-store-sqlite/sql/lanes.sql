-- Every pair of queue and kind that has ever had a job.
SELECT lane, queue, kind FROM redrive_lanes
