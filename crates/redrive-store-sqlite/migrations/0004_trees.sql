-- Whether a child continues when its parent ends as cancelled or dead.
ALTER TABLE redrive_jobs ADD COLUMN detached INTEGER NOT NULL DEFAULT 0;
-- From this version on, a job can also wait for the first of several conditions: awaits is 4, awaits_name lists them as JSON.
