-- A child that goes on when its parent ends as cancelled or dead.
ALTER TABLE redrive_jobs ADD COLUMN detached INTEGER NOT NULL DEFAULT 0;
-- From here on a job may also wait for whichever of several things comes first: awaits 4, listed as JSON in awaits_name.
