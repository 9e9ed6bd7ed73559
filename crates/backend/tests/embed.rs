//! The factor of embeddings is rounded to the activation type before it is used, and so is the product (gemma4 spec 3.1).

use std::sync::Arc;

use half::bf16;
use paceline_backend::{
    Activation, Backend, CpuBackend, CpuOptions, Isa, Op, Pass, RowSource, SlotId, SlotInit, SourceError,
    TableSource, TokenId,
};

/// Row `r` has this value in every column.
const ROWS: [f32; 3] = [1.0, -0.75, 1.0078125];
const WIDTH: usize = 8;

struct Rows;

impl RowSource for Rows {
    fn rows(&self) -> usize {
        ROWS.len()
    }

    fn columns(&self) -> usize {
        WIDTH
    }

    fn read(&self, row: usize, out: &mut [bf16]) -> Result<(), SourceError> {
        out.fill(bf16::from_f32(ROWS[row]));
        Ok(())
    }
}

/// The embeddings of the tokens 0, 1 and 2 of a model of this width.
fn embedded(hidden_size: usize, activation: Activation) -> [f32; 3] {
    let options = CpuOptions { isa: Isa::best().0, threads: 1, activation };
    let mut backend = CpuBackend::new(options).unwrap();
    let table = backend.table(TableSource::Mapped(Arc::new(Rows)), &[]).unwrap();
    let out = backend.buffer(ROWS.len(), WIDTH).unwrap();
    backend.reserve(1, 8, ROWS.len()).unwrap();
    let tokens = (0..ROWS.len() as u32).map(TokenId).collect();
    backend.open(SlotId(0), SlotInit::greedy(tokens, 8));
    let mut pass = Pass::builder();
    pass.target(SlotId(0), ROWS.len(), 0, false, false);
    let pass = pass.build();
    backend.begin(&pass);
    let scale = (hidden_size as f32).sqrt();
    backend.run(&Op::Embed { table, scale, out, column: 0 }, pass.all());
    [0, 1, 2].map(|row| {
        let values = backend.peek(out, row);
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        values[0]
    })
}

#[test]
fn the_factor_of_every_published_width_is_rounded_as_the_reference_does() {
    for (width, factor) in
        [(1152, 34.0), (1536, 39.25), (2560, 50.5), (2816, 53.0), (3840, 62.0), (5376, 73.5), (640, 25.25)]
    {
        let rounded = |x: f32| bf16::from_f32(x).to_f32();
        let expected = ROWS.map(|value| rounded(value * factor));
        assert_eq!(embedded(width, Activation::Bf16), expected, "width {width} in bf16");
        let factor = (width as f32).sqrt();
        assert_eq!(
            embedded(width, Activation::F32),
            ROWS.map(|value| value * factor),
            "width {width} in f32"
        );
    }
}
