-- No account of the bank was ever below zero: balances are added up in the order of the log.
-- waltz spark audit --master 'local[*]' --directory DIRECTORY --invariant examples/pipeline/overdrawn.sql
SELECT partition, transaction_id, account, balance
FROM (
  SELECT *, sum(amount) OVER (PARTITION BY partition, account ORDER BY transaction_id) AS balance
  FROM flows
)
WHERE balance < 0
