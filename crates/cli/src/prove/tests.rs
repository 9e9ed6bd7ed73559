//! A proof has to fail where it should.

use std::path::Path;

use paceline_backend::{Buf, Mark, Observed, Observer, Op, Rows};

use super::*;

/// A backend whose op of one kind has another last bit in its second row.
type Planted<const LOGITS: bool> = Observed<CpuBackend, WrongFromTwoRows<LOGITS>>;

struct WrongFromTwoRows<const LOGITS: bool>;

impl<const LOGITS: bool> Observer for WrongFromTwoRows<LOGITS> {
    fn ran(&mut self, backend: &mut dyn Backend, op: &Op, rows: Rows) {
        let (out, row) = match *op {
            Op::Linear { out, .. } if !LOGITS => (out, rows.start + 1),
            Op::Logits { out, first_row, .. } if LOGITS => (out, rows.start + 1 - first_row),
            _ => return,
        };
        if rows.len >= 2 {
            let mut values = backend.peek(out, row);
            values[5] = f32::from_bits(values[5].to_bits() ^ 1);
            backend.poke(out, row, &values);
        }
    }

    fn marked(&mut self, _backend: &dyn Backend, _mark: Mark, _buf: Buf, _rows: Rows) {}
}

fn oracle(name: &str) -> ModelFolder {
    let oracles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/oracles");
    ModelFolder::open(&oracles.join(name)).unwrap()
}

fn options() -> Options {
    Options {
        isa: Isa::best().0,
        threads: 2,
        activation: Activation::Bf16,
        inexact: Inexact::Refuse,
        n: 12,
        // More than any machine takes: what a slow one leaves out is not looked at here.
        limit: Duration::from_secs(1_000_000),
        extent: Extent::default(),
        ops: false,
        sampling: SamplingOptions { temperature: 0.8, seed: Some(3), ..SamplingOptions::default() },
    }
}

/// What a proof says, and how it fails.
fn proof<B: Backend + 'static>(
    wrap: fn(CpuBackend) -> B,
    work: impl FnOnce(&mut Proof<'_, B>, &[usize]) -> Result<(), Failure>,
) -> (String, Option<String>) {
    let folder = oracle("gemma4_dense");
    let drafters = Drafters::of_folder(oracle("gemma4_dense_assistant"));
    let mut out = Vec::new();
    let failure = match with_proof(&folder, &drafters, &options(), wrap, &mut out, work) {
        Ok(()) => None,
        Err(Failure::Failed(message)) => Some(message),
        Err(other) => panic!("{other:?}"),
    };
    (String::from_utf8(out).unwrap(), failure)
}

fn matrix<B: Backend + 'static>(proof: &mut Proof<'_, B>, lengths: &[usize]) -> Result<(), Failure> {
    let first = proof.begin(lengths)?;
    proof.matrix(first)
}

fn ops<B: Backend + 'static>(proof: &mut Proof<'_, B>, lengths: &[usize]) -> Result<(), Failure> {
    proof.begin(lengths)?;
    proof.ops()
}

#[test]
fn the_matrix_catches_an_op_that_is_wrong_from_two_rows_on() {
    let (table, failure) = proof::<Planted<false>>(|cpu| Observed::new(cpu, WrongFromTwoRows), matrix);
    let failure = failure.expect("it must not pass");
    assert!(table.trim_end().ends_with("DIFFERS"), "{table}");
    for word in ["op `linear` of layer 0", "column 5", "row at position ", "in plain decoding"] {
        assert!(failure.contains(word), "no {word:?} in: {failure}");
    }
}

#[test]
fn the_matrix_catches_logits_that_are_wrong_from_two_rows_on() {
    let (table, failure) = proof::<Planted<true>>(|cpu| Observed::new(cpu, WrongFromTwoRows), matrix);
    let failure = failure.expect("it must not pass");
    // Plain decoding has one row of logits at a time: only rounds with drafts or company show it.
    assert!(table.contains("same") && table.trim_end().ends_with("DIFFERS"), "{table}");
    assert!(failure.contains("op `logits` outside of layers") && failure.contains("column 5"), "{failure}");
}

#[test]
fn repeated_ops_catch_both() {
    let linear = proof::<Planted<false>>(|cpu| Observed::new(cpu, WrongFromTwoRows), ops).1;
    let linear = linear.expect("it must not pass");
    assert!(linear.contains("op `linear` (") && linear.contains("layer 0), row 1 of"), "{linear}");
    assert!(linear.contains("column 5"), "{linear}");
    let logits = proof::<Planted<true>>(|cpu| Observed::new(cpu, WrongFromTwoRows), ops).1;
    let logits = logits.expect("it must not pass");
    assert!(logits.contains("op `logits` (") && logits.contains("column 5"), "{logits}");
}

#[test]
fn tokens_that_are_left_out_inside_of_runs_are_counted() {
    let mut n_prompts = 0;
    let (table, failure) = proof(
        |cpu| cpu,
        |proof, lengths| {
            let first = proof.begin(lengths)?;
            n_prompts = lengths.len();
            // As where there was time for no more.
            (proof.reference.n_texts, proof.reference.n) = (2, 7);
            proof.benches.truncate(1);
            proof.matrix(first)?;
            proof.conclude(true)
        },
    );
    assert_eq!(failure, None, "{table}");
    let runs = table.lines().filter(|line| line.ends_with("  same")).count();
    let texts = lengths_of(&table);
    assert!(texts.iter().all(|counts| *counts == (2, 7)), "{table}");
    let all = runs * n_prompts * options().n;
    let (cut, all) = (numbers::grouped((all - runs * 2 * 7) as u64), numbers::grouped(all as u64));
    let said = format!("inside of the runs, {cut} of {all} tokens were left out for lack of time");
    assert!(table.contains(&said), "no {said:?} in: {table}");
}

#[test]
fn what_found_no_time_at_first_is_run_as_long_as_there_is_some() {
    let mut n_cells = 0;
    let (table, failure) = proof(
        |cpu| cpu,
        |proof, lengths| {
            let first = proof.begin(lengths)?;
            proof.benches.truncate(2);
            proof.benches.iter_mut().for_each(|bench| bench.cells.truncate(2));
            n_cells = proof.benches.iter().map(|bench| bench.cells.len()).sum();
            // As where something else kept the machine busy while the first bench was judged.
            proof.budget.per_row = 1e12;
            proof.matrix(first)?;
            assert_eq!((proof.totals.skipped, proof.totals.runs), (0, n_cells));
            assert_eq!(proof.totals.tokens_run, proof.totals.tokens_planned);
            Ok(())
        },
    );
    assert_eq!(failure, None, "{table}");
    let rows: Vec<_> = table.lines().filter(|line| line.ends_with("  same")).collect();
    let level = |row: &str| row.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    // Those of the second bench came first.
    assert_eq!(rows.len(), n_cells, "{table}");
    assert!(level(rows[0]) == level(rows[1]) && level(rows[1]) != level(rows[2]), "{table}");
}

/// Texts and tokens of each row of a table.
fn lengths_of(table: &str) -> Vec<(usize, usize)> {
    let rows = table.lines().filter(|line| line.ends_with("  same"));
    let words = |row: &str| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    rows.map(words).map(|row| (row[6].parse().unwrap(), row[7].parse().unwrap())).collect()
}

#[test]
fn a_sound_backend_passes_and_one_run_alone_proves_nothing() {
    let (table, failure) = proof(
        |cpu| cpu,
        |proof, lengths| {
            matrix(proof, lengths)?;
            proof.ops()?;
            proof.conclude(true)
        },
    );
    assert_eq!(failure, None, "{table}");
    assert!(table.contains("op results of") && table.contains("given drafter: ") && table.contains("ops: "));
    assert!(!table.contains("left out"), "{table}");
    let (_, failure) = proof(
        |cpu| cpu,
        |proof, lengths| {
            let first = proof.begin(lengths)?;
            proof.benches.truncate(1);
            proof.benches[0].cells = vec![PLAIN];
            proof.matrix(first)?;
            proof.conclude(false)
        },
    );
    assert!(
        failure.expect("no draft was tried").contains("not proved: none of the script's drafts was accepted")
    );
}
