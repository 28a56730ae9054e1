-- The version of the interpreter of scripts at each gateway: a script is left to a gateway that can load its snapshot.
ALTER TABLE replicas ADD COLUMN interpreter text NOT NULL DEFAULT '';
