-- name: put_script
INSERT INTO scripts (task_id, step, doc, snapshot) VALUES (:task_id, :step, :doc, :snapshot)
ON CONFLICT (task_id) DO UPDATE SET step = excluded.step, doc = excluded.doc, snapshot = excluded.snapshot
WHERE scripts.step < excluded.step;

-- name: find_script
SELECT doc, snapshot FROM scripts WHERE task_id = :task_id;

-- name: put_script_call
INSERT INTO script_calls (script_id, number, line, task_id) VALUES (:script_id, :number, :line, :task_id);

-- name: forget_script_calls
DELETE FROM script_calls WHERE script_id IN (SELECT value FROM json_each(:ids));

-- name: forget_scripts
DELETE FROM scripts WHERE task_id IN (SELECT value FROM json_each(:ids));

-- name: children_of_scripts
SELECT task_id FROM script_calls WHERE script_id IN (SELECT value FROM json_each(:ids));
