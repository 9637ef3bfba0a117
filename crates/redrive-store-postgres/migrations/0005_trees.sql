-- Jobs that end as cancelled or dead: which of their children continue, and which of the others have not ended yet.
--
-- Nodes of schema 3 keep working, and one that restarts during a deploy is not refused. They behave as before: a
-- job that such a node settles leaves its children running, a cancel by such a node also ends detached children, and a wait for
-- several conditions is resumed by the sweep of a newer node.
ALTER TABLE redrive.jobs
  -- Whether a child continues when its parent ends as cancelled or dead.
  ADD COLUMN detached     boolean NOT NULL DEFAULT false,
  -- Set by the transaction that remembers a step with children. A statement that ends the job waits for that transaction and reads
  -- it here, even where its snapshot is too old to show the children.
  ADD COLUMN has_children boolean NOT NULL DEFAULT false;

-- From this version on, a job can also wait for the first of several conditions: awaits is 4, awaits_name lists them as JSON.

-- Jobs whose children must end. A mark is added in the write that ends its job and removed in the one that finds no live child
-- left; it never changes. The marks of one call have the same number in `tree`. After a crash, a sweep processes the marks that are
-- left.
CREATE TABLE redrive.closing (
  tree bigint NOT NULL,
  mark bigint GENERATED ALWAYS AS IDENTITY,
  job  uuid NOT NULL,
  PRIMARY KEY (tree, mark)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);
