-- The same counts for all callers of one tenant together. A tenant is the beginning of a caller's name, up to the first slash; what has a
-- colon before it is an address.
INSERT INTO open_counts SELECT 'tenant ' || what, split_part(who, '/', 1), 0, sum(count) FROM open_counts
WHERE what IN ('task', 'approval') AND position('/' IN who) > 1 AND position(':' IN split_part(who, '/', 1)) = 0 GROUP BY 1, 2;

CREATE OR REPLACE FUNCTION taskgate_count(kind text, whose text, change integer) RETURNS void LANGUAGE sql AS $$
    INSERT INTO open_counts VALUES (kind, whose, pg_backend_pid() % 64, change)
    ON CONFLICT (what, who, part) DO UPDATE SET count = open_counts.count + EXCLUDED.count;
    INSERT INTO open_counts SELECT 'tenant ' || kind, split_part(whose, '/', 1), pg_backend_pid() % 64, change
    WHERE kind IN ('task', 'approval') AND position('/' IN whose) > 1 AND position(':' IN split_part(whose, '/', 1)) = 0
    ON CONFLICT (what, who, part) DO UPDATE SET count = open_counts.count + EXCLUDED.count;
$$;
