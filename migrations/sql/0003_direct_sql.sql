-- Statements are separated by a line of "-- next".
ALTER TABLE fencepost.protected ADD COLUMN scope text, ADD COLUMN requires_key boolean NOT NULL DEFAULT false;
