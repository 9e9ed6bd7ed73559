//! The targets against recorded references, in f32: greedy texts, whatever the chunks of the prompt.

mod common;

use common::{ids, open, oracle, recorded};
use paceline_backend::{Activation, Isa};

#[test]
fn greedy_texts_equal_the_reference() {
    for name in ["gemma4_e", "gemma4_dense", "gemma4_moe", "gemma4_e_wrapped", "gemma3"] {
        let mut model = open(&oracle(name), Isa::best().0, Activation::F32);
        let mut tensors = recorded(name);
        for (p, len) in [1, 7, 40, 70].into_iter().enumerate() {
            let prompt = ids(&mut tensors, &format!("p{p}.input_ids"), len);
            let expected = ids(&mut tensors, &format!("p{p}.greedy_ids"), 40);
            for chunk in [128, 7] {
                let found = model.greedy(&prompt, expected.len(), chunk);
                assert_eq!(found, expected, "{name}, prompt {p}, chunks of {chunk}");
            }
        }
    }
}
