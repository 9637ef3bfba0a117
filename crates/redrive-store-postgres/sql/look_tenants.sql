-- Tenants that have keys, by one seek of the index each.
WITH RECURSIVE tenants (tenant) AS (
  SELECT min(tenant) FROM redrive.jobs WHERE key IS NOT NULL
  UNION ALL
  SELECT (SELECT min(tenant) FROM redrive.jobs WHERE key IS NOT NULL AND tenant > tenants.tenant)
  FROM tenants WHERE tenants.tenant IS NOT NULL
)
SELECT tenant FROM tenants WHERE tenant IS NOT NULL
