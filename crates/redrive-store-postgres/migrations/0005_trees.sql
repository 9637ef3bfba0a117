-- What a job that ends as cancelled or dead adds: which children go on without it, and where ending the others stands.
--
-- Nodes of schema 3 keep working, and one that restarts during a deploy is not refused. What they do not know they do as before: a
-- job that such a node settles leaves its children running, one that it cancels takes detached children along, and a wait for
-- several things is resumed by the sweep of a newer node.
ALTER TABLE redrive.jobs
  -- A child that goes on when its parent ends as cancelled or dead.
  ADD COLUMN detached     boolean NOT NULL DEFAULT false,
  -- Set by the transaction that remembers a step with children. A statement that ends the job waits for that transaction and reads
  -- it here, even where its snapshot is too old to show the children.
  ADD COLUMN has_children boolean NOT NULL DEFAULT false;

-- From here on a job may also wait for whichever of several things comes first: awaits 4, listed as JSON in awaits_name.

-- Jobs whose children must end. A mark is added in the write that ends its job and removed in the one that finds no live child
-- left; it never changes. A tree is the call that the marks belong to. What a crash leaves here, a sweep works off.
CREATE TABLE redrive.closing (
  tree bigint NOT NULL,
  mark bigint GENERATED ALWAYS AS IDENTITY,
  job  uuid NOT NULL,
  PRIMARY KEY (tree, mark)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);
