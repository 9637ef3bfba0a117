-- A content goes once its upload has ended, well or not.
DELETE FROM contents WHERE blob = ?1
