//! DFlash drafters: any number of drafts, blocks short and full, alone and behind n-grams, the same text; faults that other
//! implementations had; and what does not fit.

use paceline::drafters::{DraftBlock, NgramLengths};
use paceline::{
    Activation, Completion, DraftSource, Engine, GenerateError, ModelFolder, Request, Sizes, TokenId, load,
};
use paceline_testkit::paths::{asset, oracle};
use serde_json::{Value, json};

use crate::files::{add_tensors, bytes_of, changed, fill, rename};
use crate::oracles::prompts;
use crate::setup::{draft, open, options, run, sizes, tokens};

const LARGEST: u16 = 0x7F7F;
const NAN: u16 = 0x7FC0;

fn target() -> ModelFolder {
    ModelFolder::open(&oracle("gemma4_dense")).unwrap()
}

fn drafter(change: impl FnOnce(&mut Value, &mut Vec<u8>)) -> ModelFolder {
    changed(&oracle("gemma4_dense_dflash"), change)
}

/// Behind the first `n` tokens of recorded text `i` of the target, which the drafter knows; its prompt has 1, 7, 40 or 70 of them.
fn request(i: usize, n: usize, max_tokens: usize, k: usize) -> Request {
    let (prompt, greedy) = &prompts("gemma4_dense")[i];
    let text = tokens(&[&prompt[..], greedy].concat());
    let mut request = Request::new(text[..n].to_vec(), max_tokens);
    request.ignore_eos = true;
    request.draft.tokens_per_round = Some(k);
    request
}

/// The four recorded prompts.
fn recorded(max_tokens: usize, k: usize) -> Vec<Request> {
    [1, 7, 40, 70].iter().enumerate().map(|(i, &n)| request(i, n, max_tokens, k)).collect()
}

/// What plain decoding gives.
fn plainly(requests: &[Request], activation: Activation) -> Vec<Completion> {
    let mut requests = requests.to_vec();
    requests.iter_mut().for_each(|request| request.draft.tokens_per_round = None);
    run(&mut open(&oracle("gemma4_dense"), None, sizes(450, 1, 512, 0), activation), &requests, 0)
}

/// An engine that drafts as `block` says, after n-grams if asked to.
fn engine(
    drafter: &ModelFolder,
    sizes: Sizes,
    activation: Activation,
    block: DraftBlock,
    ngrams: bool,
) -> Engine {
    let (target, progress) = (target(), &mut |_, _| {});
    let mut options = options(&target, Some(drafter), sizes, activation, progress);
    let draft = options.draft.as_mut().unwrap();
    draft.block = block;
    // Requests may ask for more than the block has masks, which is not for an engine to be loaded with.
    draft.tokens_per_round = draft.tokens_per_round.filter(|&drafts| drafts < 8);
    if ngrams {
        draft.sources.insert(0, DraftSource::Ngram(NgramLengths::new(1, 3).unwrap()));
    }
    load(&target, options).unwrap()
}

#[test]
fn blocks_short_and_full_behind_ngrams_and_alone_change_no_token() {
    let drafter = drafter(|_, _| {});
    for activation in [Activation::F32, Activation::Bf16] {
        let requests = |k| [recorded(50, k), vec![request(2, 15, 50, k), request(3, 64, 50, k)]].concat();
        let expected = plainly(&requests(1), activation);
        for (block, ngrams) in [
            (DraftBlock::Short, false),
            (DraftBlock::Full, false),
            (DraftBlock::Short, true),
            (DraftBlock::Full, true),
        ] {
            let (mut accepted, mut rejected) = (0, 0);
            for (k, n_slots, chunk, stagger) in
                [(1, 1, 512, 0), (2, 4, 16, 3), (3, 6, 512, 0), (5, 2, 17, 1), (7, 3, 64, 2), (15, 5, 15, 1)]
            {
                let mut engine = engine(&drafter, sizes(200, n_slots, chunk, k), activation, block, ngrams);
                let mut requests = requests(k);
                // Some are verified only as far as the drafter is sure.
                requests
                    .iter_mut()
                    .skip(1)
                    .step_by(3)
                    .for_each(|request| request.draft.confidence = Some(0.02));
                let drafted = run(&mut engine, &requests, stagger);
                for (i, (drafted, plain)) in drafted.iter().zip(&expected).enumerate() {
                    let what = format!("prompt {i}, {k} drafts, {block:?}, n-grams {ngrams}, {activation:?}");
                    assert_eq!(drafted.token_ids, plain.token_ids, "{what}");
                    let draft = draft(drafted);
                    assert_eq!(draft.inactive_reason, None, "{what}");
                    // A block of eight has seven masks.
                    assert!(ngrams || draft.accepted_by_position.len() <= k.min(7), "{what}: {draft:?}");
                    accepted += draft.accepted;
                    rejected += draft.drafted - draft.accepted;
                }
            }
            assert!(accepted > 100 && rejected > 100, "{block:?}, {ngrams}: {accepted}, {rejected}");
        }
    }
}

/// Short of blocks a full block becomes a shorter one; nobody loses his place for it.
#[test]
fn full_blocks_short_of_memory_change_no_token() {
    let drafter = drafter(|_, _| {});
    let requests = [recorded(60, 3), vec![request(3, 64, 60, 3)]].concat();
    let expected = plainly(&requests, Activation::F32);
    let all = sizes(150, 4, 64, 3);
    let whole =
        engine(&drafter, all, Activation::F32, DraftBlock::Full, false).backend_info().kv_bytes as u64;
    for part in [2, 3] {
        let sizes = Sizes { kv_memory: Some(whole / part), ..all };
        let mut engine = engine(&drafter, sizes, Activation::F32, DraftBlock::Full, false);
        for (drafted, plain) in run(&mut engine, &requests, 2).iter().zip(&expected) {
            assert_eq!(drafted.token_ids, plain.token_ids);
            assert!(draft(drafted).accepted > 0);
        }
    }
}

#[test]
fn full_blocks_draft_otherwise_than_short_ones() {
    let drafter = drafter(|_, _| {});
    let requests = recorded(60, 2);
    let accepted = |block| {
        let mut engine = engine(&drafter, sizes(200, 1, 512, 2), Activation::F32, block, false);
        let completions = run(&mut engine, &requests, 0);
        completions.iter().map(|done| draft(done).accepted_per_round.clone()).collect::<Vec<_>>()
    };
    assert_ne!(accepted(DraftBlock::Short), accepted(DraftBlock::Full));
}

#[test]
fn acceptance_does_not_depend_on_the_company() {
    let mut requests: Vec<_> =
        (0..32).map(|i| request(i % 4, [1, 7, 40, 70][i % 4] + i / 4, 24, 7)).collect();
    // Where tokens are counted each draft of a block depends on those before it, whoever stands beside it.
    for request in requests.iter_mut().skip(1).step_by(3) {
        (request.sampling.repetition_penalty, request.sampling.frequency_penalty) = (1.3, 0.5);
    }
    for block in [DraftBlock::Short, DraftBlock::Full] {
        let accepted = |n_slots| {
            let drafter = drafter(|_, _| {});
            let mut engine = engine(&drafter, sizes(100, n_slots, 64, 7), Activation::Bf16, block, false);
            let completions = run(&mut engine, &requests, 0);
            completions.iter().map(|done| draft(done).accepted_per_round.clone()).collect::<Vec<_>>()
        };
        let alone = accepted(1);
        assert!(alone.iter().flatten().any(|&n| n == 7) && alone.iter().flatten().any(|&n| n == 0));
        for n_slots in [4, 16, 32] {
            assert_eq!(accepted(n_slots), alone, "{n_slots} at a time, {block:?}");
        }
    }
}

#[test]
fn a_mask_that_the_target_chooses_stays_in_the_text() {
    let folder = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
    let mut requests = [Request::new(tokens(&[2, 300, 301]), 20), Request::new(tokens(&[2, 500]), 20)];
    for request in &mut requests {
        request.sampling.logit_bias = vec![(TokenId(4), 40.0)];
    }
    let with = |drafter: Option<&str>| {
        let drafter = drafter.map(asset);
        let mut engine = open(folder.origin(), drafter.as_deref(), sizes(100, 2, 64, 7), Activation::F32);
        run(&mut engine, &requests, 0)
    };
    let (plain, drafted) = (with(None), with(Some("tiny-gemma4-dflash")));
    let masks = |done: &Completion| done.token_ids.iter().filter(|token| token.0 == 4).count();
    assert!(plain.iter().any(|done| masks(done) > 3), "the bias does not make the target choose a mask");
    for (drafted, plain) in drafted.iter().zip(&plain) {
        assert_eq!((&drafted.token_ids, &drafted.text), (&plain.token_ids, &plain.text));
    }
}

/// Every round has its drafts, long after the window of 16 and after what the drafter was trained on.
#[test]
fn drafting_goes_on_behind_the_window() {
    let (target, drafter) = (oracle("gemma4_dense"), oracle("gemma4_dense_dflash"));
    let mut engine = open(&target, Some(&drafter), sizes(400, 1, 64, 3), Activation::F32);
    let completion = engine.generate(request(3, 70, 300, 3)).unwrap();
    let draft = draft(&completion);
    assert_eq!(draft.inactive_reason, None);
    // All but the first token, and the last one where no draft is left to verify.
    assert!(draft.emitted >= 298 && draft.drafted >= 3 * draft.rounds - 3, "{draft:?}");
}

/// What a target is made of is data: this one has the shapes of the drafter's own, and other layers.
#[test]
fn a_target_of_another_family_is_drafted_for() {
    let prompts =
        [3_u32, 30, 90].map(|n| tokens(&(0..n).map(|i| 20 + (i * 37 + n) % 280).collect::<Vec<_>>()));
    let requests: Vec<_> = prompts.map(|prompt| Request::new(prompt, 40)).into();
    for activation in [Activation::F32, Activation::Bf16] {
        let mut engine = open(&oracle("gemma3"), None, sizes(150, 1, 512, 0), activation);
        let plain = run(&mut engine, &requests, 0);
        for (k, n_slots, chunk) in [(1, 1, 512), (7, 3, 13)] {
            let drafter = oracle("gemma4_dense_dflash");
            let mut engine =
                open(&oracle("gemma3"), Some(&drafter), sizes(150, n_slots, chunk, k), activation);
            for (drafted, plain) in run(&mut engine, &requests, 1).iter().zip(&plain) {
                assert_eq!(drafted.token_ids, plain.token_ids);
                assert!(draft(drafted).rounds > 0 && draft(drafted).inactive_reason.is_none());
            }
        }
    }
}

#[test]
fn penalties_count_drafts_of_the_block_in_order() {
    let mut requests = recorded(40, 7);
    for request in &mut requests {
        request.sampling.repetition_penalty = 1.3;
        request.sampling.frequency_penalty = 0.4;
    }
    let plain = plainly(&requests, Activation::F32);
    let drafter = oracle("gemma4_dense_dflash");
    let mut engine = open(&oracle("gemma4_dense"), Some(&drafter), sizes(120, 2, 64, 7), Activation::F32);
    for (drafted, plain) in run(&mut engine, &requests, 0).iter().zip(&plain) {
        assert_eq!(drafted.token_ids, plain.token_ids);
    }
}

/// Reads a bf16 tensor of a folder's weights as rows of bytes.
fn rows(folder: &str, tensor: &str, n_rows: usize) -> Vec<Vec<u8>> {
    let mut weights = std::fs::read(oracle(folder).join("model.safetensors")).unwrap();
    let bytes = bytes_of(&mut weights, tensor);
    bytes.chunks_exact(bytes.len() / n_rows).map(<[u8]>::to_vec).collect()
}

/// A head of the even tokens only: every draft is even, and where the target's text is even too drafts are accepted.
#[test]
fn a_drafter_with_a_vocabulary_of_its_own_drafts_tokens_of_the_target() {
    let table = rows("gemma4_dense", "model.embed_tokens.weight", 320);
    let half: Vec<u8> = table.iter().step_by(2).flatten().copied().collect();
    let offsets =
        |offset: fn(i64) -> i64| (0..160).flat_map(|j| offset(j).to_le_bytes()).collect::<Vec<u8>>();
    let reduced = |offsets: Vec<u8>| {
        drafter(|config, weights| {
            config["draft_vocab_size"] = json!(160);
            add_tensors(
                weights,
                &[
                    ("lm_head.weight", "BF16", vec![160, 64], half.clone()),
                    ("d2t", "I64", vec![160], offsets),
                    ("t2d", "BOOL", vec![320], vec![1; 320]),
                ],
            );
        })
    };
    let requests = recorded(60, 7);
    let plain = plainly(&requests, Activation::F32);
    for temperature in [0.0, 0.8] {
        let mut requests = requests.clone();
        for request in &mut requests {
            (request.sampling.temperature, request.sampling.seed) = (temperature, Some(5));
        }
        let mut engine =
            engine(&reduced(offsets(|j| j)), sizes(200, 2, 64, 7), Activation::F32, DraftBlock::Short, false);
        let drafted = run(&mut engine, &requests, 0);
        let accepted: u64 = drafted.iter().map(|done| draft(done).accepted).sum();
        assert!(accepted > 3, "{accepted} accepted at temperature {temperature}");
        if temperature == 0.0 {
            for (drafted, plain) in drafted.iter().zip(&plain) {
                assert_eq!(drafted.token_ids, plain.token_ids);
            }
        }
    }
    for (wrong, found) in [
        (offsets(|j| j + 2), "161 at element 159".to_owned()),
        (offsets(|j| -j), "-1 at element 1".to_owned()),
        (offsets(|j| if j == 0 { -1 } else { j }), "-1 at element 0".to_owned()),
        (offsets(|_| i64::MAX), format!("{} at element 0", i64::MAX)),
    ] {
        let message = refusal(&target(), &reduced(wrong), "a wrong d2t");
        let words = format!(
            "model.safetensors: tensor `d2t`: expected offsets that lead to ascending ids below 320, found {found}"
        );
        assert!(message.contains(&words), "{message}");
    }
}

/// A file that carries the target's own table and head drafts as one that does not.
#[test]
fn a_drafter_that_carries_table_and_head_uses_them() {
    let table: Vec<u8> = rows("gemma4_dense", "model.embed_tokens.weight", 320).concat();
    let accepted = |drafter: &ModelFolder| {
        let mut engine = engine(drafter, sizes(200, 1, 512, 7), Activation::F32, DraftBlock::Short, false);
        let completions = run(&mut engine, &[request(2, 40, 40, 7)], 0);
        draft(&completions[0]).accepted_per_round.clone()
    };
    let own = accepted(&drafter(|_, weights| {
        let tensor = |name| (name, "BF16", vec![320, 64], table.clone());
        add_tensors(weights, &[tensor("embed_tokens.weight"), tensor("lm_head.weight")]);
    }));
    assert_eq!(own, accepted(&drafter(|_, _| {})));
    let zeros = drafter(|_, weights| {
        add_tensors(weights, &[("lm_head.weight", "BF16", vec![320, 64], vec![0; table.len()])]);
    });
    assert_ne!(own, accepted(&zeros));
}

fn refusal(target: &ModelFolder, drafter: &ModelFolder, what: &str) -> String {
    let progress = &mut |_, _| {};
    let options = options(target, Some(drafter), sizes(80, 2, 64, 3), Activation::Bf16, progress);
    load(target, options).err().unwrap_or_else(|| panic!("{what} was loaded")).to_string()
}

#[test]
fn damaged_drafters_and_those_of_other_targets_are_refused_by_name() {
    let (fc, q_norm) = ("fc.weight", "layers.1.self_attn.q_norm.weight");
    type Change = Box<dyn FnOnce(&mut Value, &mut Vec<u8>)>;
    let cases: Vec<(Change, &[&str])> = vec![
        (Box::new(move |_, w| rename(w, fc, "fd.weight")), &["fc.weight", "missing"]),
        (Box::new(move |_, w| fill(w, fc, NAN)), &["fc.weight", "finite"]),
        (
            Box::new(move |_, w| rename(w, q_norm, "layers.1.self_attn.g_proj.weight")),
            &["Laguna", "not supported"],
        ),
        (
            Box::new(|_, w| rename(w, "hidden_norm.weight", "markov_head.weight")),
            &["DSpark", "not supported"],
        ),
        (Box::new(|c, _| c["block_size"] = json!(1)), &["block_size", "from 2"]),
        (Box::new(|c, _| c["hidden_size"] = json!(128)), &["hidden_size", "64", "128"]),
        (Box::new(|c, _| c["vocab_size"] = json!(640)), &["vocab_size", "320", "640"]),
        (Box::new(|c, _| c["num_target_layers"] = json!(12)), &["num_target_layers", "6", "12"]),
        (Box::new(|c, _| c["dflash_config"]["mask_token_id"] = json!(320)), &["mask_token_id", "320"]),
        (
            Box::new(|c, _| c["dflash_config"]["target_layer_ids"] = json!([0, 1, 3, 6])),
            &["target_layer_ids", "6"],
        ),
        (Box::new(|c, _| c["dflash_config"]["target_layer_ids"] = json!([0, 1, 3])), &["fc.weight", "192"]),
        (Box::new(|c, _| c["num_hidden_layers"] = json!(2)), &["layer_types", "2 entries"]),
        (Box::new(|c, _| c["speculators_model_type"] = json!("dflash")), &["speculators", "not supported"]),
        (Box::new(|c, _| c["architectures"] = json!(["DSparkDraftModel"])), &["DSpark", "not supported"]),
    ];
    for (case, (change, words)) in cases.into_iter().enumerate() {
        let message = refusal(&target(), &drafter(change), &format!("case {case}, {words:?}"));
        for word in words {
            assert!(message.contains(word), "no {word:?} in: {message}");
        }
    }
    let deeper = ModelFolder::open(&oracle("gemma4_e")).unwrap();
    let tiny = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
    for other in [&deeper, &tiny] {
        let message = refusal(other, &drafter(|_, _| {}), "a pair that does not fit");
        assert!(message.contains("this drafter does not fit the target"), "{message}");
    }
    let progress = &mut |_, _| {};
    let alone = drafter(|_, _| {});
    let message = load(&alone, options(&alone, None, sizes(80, 1, 64, 0), Activation::Bf16, progress)).err();
    assert!(message.unwrap().to_string().contains("is a DFlash drafter, not a model"));
}

#[test]
fn more_drafts_than_a_block_has_masks_are_refused() {
    let (target, drafter, progress) = (target(), drafter(|_, _| {}), &mut |_, _| {});
    let message = |asked| {
        let progress = &mut |_, _| {};
        let options = options(&target, Some(&drafter), sizes(80, 1, 64, asked), Activation::Bf16, progress);
        load(&target, options).err().map(|error| error.to_string())
    };
    assert_eq!(message(7), None);
    let message = message(8).expect("8 drafts of 7 masks");
    assert!(message.contains("8 drafts") && message.contains("expected at most 7"), "{message}");
    // An engine may have room for more, for a request that asks for as many as it can get.
    let mut options = options(&target, Some(&drafter), sizes(80, 1, 64, 12), Activation::Bf16, progress);
    options.draft.as_mut().unwrap().tokens_per_round = None;
    let completion = load(&target, options).unwrap().generate(request(0, 9, 30, 12)).unwrap();
    assert!(draft(&completion).accepted_by_position.len() == 7, "{completion:?}");
}

#[test]
fn a_mask_that_the_config_leaves_out_is_the_targets() {
    let accepted = |drafter: &ModelFolder| {
        let mut engine = engine(drafter, sizes(80, 1, 64, 7), Activation::F32, DraftBlock::Short, false);
        let completion = engine.generate(request(0, 9, 30, 7)).unwrap();
        draft(&completion).accepted_per_round.clone()
    };
    let unnamed = drafter(|config, _| config["dflash_config"]["mask_token_id"] = Value::Null);
    let other = drafter(|config, _| config["dflash_config"]["mask_token_id"] = json!(9));
    assert_eq!(accepted(&unnamed), accepted(&drafter(|_, _| {})));
    assert_ne!(accepted(&unnamed), accepted(&other));
}

#[test]
fn two_drafters_that_read_taps_are_refused() {
    let (target, drafter, progress) = (target(), drafter(|_, _| {}), &mut |_, _| {});
    let mut options = options(&target, Some(&drafter), sizes(80, 1, 64, 3), Activation::Bf16, progress);
    options.draft.as_mut().unwrap().sources.push(DraftSource::Checkpoint(&drafter));
    let message = load(&target, options).err().unwrap().to_string();
    assert!(message.contains("both DFlash drafters"), "{message}");
}

#[test]
fn a_drafter_whose_values_overflow_is_dropped_and_the_text_goes_on() {
    let completion =
        |engine: &mut Engine| -> Result<Completion, GenerateError> { engine.generate(request(1, 7, 30, 3)) };
    let plain = &plainly(&[request(1, 7, 30, 3)], Activation::Bf16)[0];
    // In the context's rows, in its K/V alone, and inside the block.
    let (context, logits) =
        ("the K/V that it made of the target's hidden states was not finite", "its logits were");
    for (tensor, what) in [
        ("fc.weight", context),
        ("layers.0.self_attn.v_proj.weight", context),
        ("layers.2.mlp.down_proj.weight", logits),
        ("layers.0.self_attn.q_norm.weight", logits),
    ] {
        let drafter = drafter(|_, weights| fill(weights, tensor, LARGEST));
        let mut engine = engine(&drafter, sizes(80, 1, 64, 3), Activation::Bf16, DraftBlock::Short, false);
        let drafted = completion(&mut engine).unwrap();
        assert_eq!(drafted.token_ids, plain.token_ids, "{tensor}");
        let reason = draft(&drafted).inactive_reason.as_deref().expect(tensor);
        assert!(reason.contains(what) && reason.contains("not finite"), "{tensor}: {reason}");
        engine.check_integrity().unwrap();
    }
}
