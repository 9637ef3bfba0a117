-- Leaves nothing behind on a connection that a pooler keeps.
UNLISTEN redrive_doctor
