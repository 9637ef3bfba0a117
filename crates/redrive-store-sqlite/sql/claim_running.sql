-- How many jobs of a lane are in a state, as of the last commit.
SELECT jobs FROM redrive_counts WHERE lane = ?1 AND state = ?2
