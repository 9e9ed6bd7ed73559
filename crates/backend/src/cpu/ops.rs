//! The ops on the CPU: which buffers, which kernel.

use paceline_kernels::attend::{self, AttendLayer, AttendRow};
use paceline_kernels::each_row::{each_row, each_row_pair};
use paceline_kernels::embed::scale_row;
use paceline_kernels::experts::{self, Routes};
use paceline_kernels::heads::{norm_and_turn_heads, norm_heads};
use paceline_kernels::linear::{linear, linear_gated, linear_gated_by, linear_groups};
use paceline_kernels::norm::{RmsNorm, add_norm, add_norm_then, add_then, rms_norm, rms_norm_in_place};
use paceline_kernels::router::{Routed, route};

use super::CpuBackend;
use super::storage::Buffer;
use crate::handle::{Buf, Table};
use crate::slot_states::Listed;
use crate::{Op, Rows, ValueSource};

/// Source buffer to read and destination buffer to write, which differ.
fn two(buffers: &mut [Buffer], from: Buf, to: Buf) -> (&Buffer, &mut Buffer) {
    let [from, to] = different(buffers, [from, to]);
    (from, to)
}

fn different<const N: usize>(buffers: &mut [Buffer], of_op: [Buf; N]) -> [&mut Buffer; N] {
    buffers
        .get_disjoint_mut(of_op.map(|buf| buf.index as usize))
        .expect("an op's inputs and output are different buffers of this backend")
}

/// The same memory, empty, free of what its elements borrowed.
fn emptied(mut rows: Vec<AttendRow<'_>>) -> Vec<AttendRow<'static>> {
    rows.clear();
    rows.into_iter().map(|_| unreachable!("cleared above")).collect()
}

impl CpuBackend {
    pub(super) fn dispatch(&mut self, op: &Op, rows: Rows) {
        match *op {
            Op::Embed { table, scale, out, column } => self.embed(rows, table, scale, out, column as usize),
            Op::PerLayerInputs { .. } => self.per_layer_inputs(op, rows),
            Op::Linear { .. } | Op::LinearGated { .. } | Op::LinearGatedBy { .. } | Op::Logits { .. } => {
                self.product(op, rows);
            }
            Op::Norm { .. } => self.norm(op, rows),
            Op::AddNorm { .. } => self.add_norm(op, rows),
            Op::Add { .. } => self.add(op, rows),
            Op::NormSum { .. } => self.norm_sum(op, rows),
            Op::QkNormRopeStore { .. } => self.qk_norm_rope_store(op, rows),
            Op::Attend { .. } => self.attend(op, rows),
            Op::KvNormRopeStore { .. } => self.kv_norm_rope_store(op, rows),
            Op::Route { .. } => self.route(op, rows),
            Op::Experts { .. } => self.run_experts(op, rows),
            Op::GatherRows { src, out } => self.gather_rows(rows, src, out),
            Op::Tap { x, out, column } => self.tap(rows, x, out, column as usize),
            Op::Choose { logits, softcap, first_row } => self.choose(rows, logits, softcap, first_row),
            Op::ChooseDraft { .. } => self.choose_draft(op, rows),
            Op::ChooseBlock { .. } => self.choose_block(op, rows),
            Op::ClusterLogits { .. } => self.cluster_logits(op, rows),
            Op::ChooseClustered { .. } => self.choose_clustered(op, rows),
            Op::Commit => self.slots.commit(),
            Op::KeepCommitted { src, out } => self.keep_committed(src, out),
            Op::StateCommit { src, out } => self.state_commit(src, out),
            Op::ReadSlots { src, out, column } => self.read_slots(rows, src, out, column as usize),
            Op::WriteSlots { src, out } => self.write_slots(rows, src, out),
        }
    }

    fn embed(&mut self, rows: Rows, table: Table, scale: f32, out: Buf, column: usize) {
        let Self { tables, matrices, gathered, buffers, slots, activation, isa, .. } = self;
        let (table, out) = (&tables[table.index as usize], &mut buffers[out.index as usize]);
        let scale = activation.round(scale);
        for r in 0..rows.len {
            let to = &mut out.row_mut(rows.start + r)[column..column + table.width()];
            table.gather(matrices, slots.resolved(rows, r).token.0, gathered, to);
            scale_row(*isa, *activation, scale, to);
        }
    }

    fn per_layer_inputs(&mut self, op: &Op, rows: Rows) {
        let &Op::PerLayerInputs { table, table_scale, projected, projection_scale, norm, eps, out } = op
        else {
            unreachable!("dispatched by kind")
        };
        let Self { tables, matrices, gathered, buffers, slots, vectors, activation, isa, .. } = self;
        let (table, table_scale) = (&tables[table.index as usize], activation.round(table_scale));
        let norm = RmsNorm { weight: Some(&vectors[norm.index as usize]), eps };
        let width = norm.weight.map_or(0, <[f32]>::len);
        // The projection is scaled and normed in place: nothing else reads it.
        let (projected, out) = (projected.index as usize, out.index as usize);
        let [projected, out] = buffers.get_disjoint_mut([projected, out]).expect("two different buffers");
        for r in 0..rows.len {
            let (from, to) = (projected.row_mut(rows.start + r), out.row_mut(rows.start + r));
            table.gather(matrices, slots.resolved(rows, r).token.0, gathered, to);
            for (to, from) in to.chunks_exact_mut(width).zip(from.chunks_exact(width)) {
                let piece = &mut self.piece[..width];
                piece.iter_mut().zip(from).for_each(|(p, x)| *p = x * projection_scale);
                rms_norm_in_place(*isa, piece, norm);
                for (to, p) in to.iter_mut().zip(piece) {
                    *to = (*p + *to * table_scale) * std::f32::consts::FRAC_1_SQRT_2;
                }
            }
        }
    }

    fn product(&mut self, op: &Op, rows: Rows) {
        let Self { context, buffers, matrices, activation, .. } = self;
        let (start, n) = (rows.start, rows.len);
        match *op {
            Op::Linear { x, w, out } => {
                let (x, out) = two(buffers, x, out);
                let w = matrices[w.index as usize].plain();
                linear(context, x.rows(start, n), *activation, w, out.rows_mut(start, n));
            }
            Op::LinearGated { x, w, function, out } => {
                let (x, out) = two(buffers, x, out);
                let w = matrices[w.index as usize].gated();
                linear_gated(context, x.rows(start, n), *activation, w, function, out.rows_mut(start, n));
            }
            Op::LinearGatedBy { x, w, by, by_column, out } => {
                let [x, by, out] = different(buffers, [x, by, out]);
                let w = matrices[w.index as usize].plain();
                let by = by.columns(start, n, by_column as usize);
                linear_gated_by(context, x.rows(start, n), *activation, w, by, out.rows_mut(start, n));
            }
            Op::Logits { x, w, first_row, out } => {
                let (x, out) = two(buffers, x, out);
                let w = matrices[w.index as usize].plain();
                linear(context, x.rows(start, n), *activation, w, out.rows_mut(start - first_row, n));
            }
            _ => unreachable!("dispatched by kind"),
        }
    }

    fn norm(&mut self, op: &Op, rows: Rows) {
        let &Op::Norm { x, w, eps, out } = op else { unreachable!("dispatched by kind") };
        let Self { context, buffers, vectors, isa, .. } = self;
        let norm = RmsNorm { weight: w.map(|w| &vectors[w.index as usize][..]), eps };
        let width = w.map_or(x.width, |w| w.len) as usize;
        let (x, out) = two(buffers, x, out);
        let (x, out) = (x.rows(rows.start, rows.len), out.rows_mut(rows.start, rows.len));
        each_row(context.team(), out, width, |r, out| rms_norm(*isa, x.row(r, width), norm, out));
    }

    fn add_norm(&mut self, op: &Op, rows: Rows) {
        let &Op::AddNorm { x, h, w, scale, next, eps } = op else { unreachable!("dispatched by kind") };
        let Self { context, buffers, vectors, isa, .. } = self;
        let norm = RmsNorm { weight: Some(&vectors[w.index as usize]), eps };
        let (start, n, width) = (rows.start, rows.len, w.len as usize);
        let Some((next, out)) = next else {
            let (h, x) = two(buffers, h, x);
            let (h, x) = (h.rows(start, n), x.rows_mut(start, n));
            return each_row(context.team(), x, width, |r, x| {
                add_norm(*isa, x, h.row(r, width), norm, scale)
            });
        };
        let next = RmsNorm { weight: Some(&vectors[next.index as usize]), eps };
        let [x, h, out] = different(buffers, [x, h, out]);
        let (x, h, out) = (x.rows_mut(start, n), h.rows(start, n), out.rows_mut(start, n));
        each_row_pair(context.team(), x, width, out, width, |r, x, out| {
            add_norm_then(*isa, x, h.row(r, width), norm, scale, next, out);
        });
    }

    fn add(&mut self, op: &Op, rows: Rows) {
        let &Op::Add { x, h, next, eps, out } = op else { unreachable!("dispatched by kind") };
        let Self { context, buffers, vectors, isa, .. } = self;
        let (start, n, width) = (rows.start, rows.len, next.len as usize);
        let next = RmsNorm { weight: Some(&vectors[next.index as usize]), eps };
        let [x, h, out] = different(buffers, [x, h, out]);
        let (x, h, out) = (x.rows_mut(start, n), h.rows(start, n), out.rows_mut(start, n));
        each_row_pair(context.team(), x, width, out, width, |r, x, out| {
            add_then(*isa, x, h.row(r, width), next, out);
        });
    }

    fn norm_sum(&mut self, op: &Op, rows: Rows) {
        let &Op::NormSum { a, wa, b, wb, eps } = op else { unreachable!("dispatched by kind") };
        let Self { context, buffers, vectors, isa, .. } = self;
        let (start, n, width) = (rows.start, rows.len, wa.len as usize);
        let [wa, wb] = [wa, wb].map(|w| RmsNorm { weight: Some(&vectors[w.index as usize]), eps });
        let (b, a) = two(buffers, b, a);
        let (b, a) = (b.rows(start, n), a.rows_mut(start, n));
        each_row(context.team(), a, width, |r, a| {
            rms_norm_in_place(*isa, a, wa);
            add_norm(*isa, a, b.row(r, width), wb, 1.0);
        });
    }

    fn qk_norm_rope_store(&mut self, op: &Op, rows: Rows) {
        let &Op::QkNormRopeStore { qkv, n_heads, q_norm, rope, eps, kv } = op else {
            unreachable!("dispatched by kind")
        };
        let Self { context, buffers, vectors, ropes, groups, slots, isa, .. } = self;
        let (isa, d) = (*isa, q_norm.len as usize);
        let q_norm = RmsNorm { weight: Some(&vectors[q_norm.index as usize]), eps };
        let k_norm = kv.map(|kv| RmsNorm { weight: Some(&vectors[kv.k_norm.index as usize]), eps });
        let n_kv = kv.map_or(0, |kv| groups[kv.layer.group.index as usize].spec().kv_heads);
        let (q_end, k_end) = (n_heads as usize * d, (n_heads as usize + n_kv) * d);
        let width = if kv.is_some() { k_end + n_kv * d } else { q_end };
        let (tables, slots_now) = (&ropes[rope.index as usize], &*slots);
        let buffer = &mut buffers[qkv.index as usize];
        each_row(context.team(), buffer.rows_mut(rows.start, rows.len), width, |r, row| {
            let (cos, sin) = tables.row(slots_now.row_index(rows.set, rows.start + r));
            let (qk, v) = row.split_at_mut(k_end);
            if let Some(kv) = kv {
                if kv.value == ValueSource::Key {
                    v.copy_from_slice(&qk[q_end..]);
                }
                if kv.norm_value {
                    norm_heads(isa, v, d, RmsNorm { weight: None, eps });
                }
            }
            let (q, k) = qk.split_at_mut(q_end);
            norm_and_turn_heads(isa, q, d, q_norm, cos, sin);
            if let Some(k_norm) = k_norm {
                norm_and_turn_heads(isa, k, d, k_norm, cos, sin);
            }
        });
        let Some(kv) = kv else { return };
        let group = &mut groups[kv.layer.group.index as usize];
        for r in 0..rows.len {
            let row = slots.resolved(rows, r);
            let (k, v) = buffer.row(rows.start + r)[q_end..width].split_at(n_kv * d);
            if !group.put(isa, kv.layer.layer as usize, (row.slot, row.kv_index), k, v) {
                slots.fault_row(slots.row_index(rows.set, rows.start + r));
            }
        }
    }

    fn kv_norm_rope_store(&mut self, op: &Op, rows: Rows) {
        let &Op::KvNormRopeStore { kv, column, layer, k_norm, rope, eps } = op else {
            unreachable!("dispatched by kind")
        };
        let Self { context, buffers, vectors, ropes, groups, slots, isa, .. } = self;
        let (isa, d, column) = (*isa, k_norm.len as usize, column as usize);
        let k_norm = RmsNorm { weight: Some(&vectors[k_norm.index as usize]), eps };
        let group = &mut groups[layer.group.index as usize];
        let n_kv = group.spec().kv_heads;
        let (k_end, v_end) = (column + n_kv * d, column + 2 * n_kv * d);
        let (tables, slots_now) = (&ropes[rope.index as usize], &*slots);
        let buffer = &mut buffers[kv.index as usize];
        each_row(context.team(), buffer.rows_mut(rows.start, rows.len), k_end, |r, row| {
            let (cos, sin) = tables.row(slots_now.row_index(rows.set, rows.start + r));
            norm_and_turn_heads(isa, &mut row[column..], d, k_norm, cos, sin);
        });
        for r in 0..rows.len {
            let row = slots.resolved(rows, r);
            let (k, v) = buffer.row(rows.start + r)[column..v_end].split_at(n_kv * d);
            if !group.put(isa, layer.layer as usize, (row.slot, row.kv_index), k, v) {
                slots.draft_fault_row(slots.row_index(rows.set, rows.start + r));
            }
        }
    }

    fn attend(&mut self, op: &Op, rows: Rows) {
        let &Op::Attend { q, layer, n_heads, scale, sees, out } = op else {
            unreachable!("dispatched by kind")
        };
        let Self { context, buffers, groups, slots, isa, attend, attend_rows, .. } = self;
        let group = &groups[layer.group.index as usize];
        let mut seen: Vec<AttendRow<'_>> = std::mem::take(attend_rows);
        seen.extend((0..rows.len).map(|r| {
            let row = slots.resolved(rows, r);
            AttendRow { block_table: group.table(row.slot), visible: group.visible(row, sees) }
        }));
        let layer = AttendLayer {
            store: group.store(),
            layer: layer.layer as usize,
            n_heads: n_heads as usize,
            scale,
        };
        let (q, out) = two(buffers, q, out);
        let (q, out) = (q.rows(rows.start, rows.len), out.rows_mut(rows.start, rows.len));
        attend::attend(*isa, context.team(), attend, layer, &seen, q, out);
        *attend_rows = emptied(seen);
    }

    fn route(&mut self, op: &Op, rows: Rows) {
        let &Op::Route { x, scale, proj, per_expert, top_k, eps, normed, prob, routes } = op else {
            unreachable!("dispatched by kind")
        };
        let (start, n) = (rows.start, rows.len);
        let Self { buffers, vectors, isa, .. } = self;
        // `norm(x)` without weight, then times `scale`: the same as the norm with `scale` for its weight.
        let norm = RmsNorm { weight: Some(&vectors[scale.index as usize]), eps };
        let (from, to) = two(buffers, x, normed);
        for r in start..start + n {
            rms_norm(
                *isa,
                &from.row(r)[..scale.len as usize],
                norm,
                &mut to.row_mut(r)[..scale.len as usize],
            );
        }
        self.product(&Op::Linear { x: normed, w: proj, out: prob }, rows);
        let Self { buffers, vectors, isa, routed, .. } = self;
        let per_expert = &vectors[per_expert.index as usize];
        let [prob, routes] = different(buffers, [prob, routes]);
        routed.resize(top_k as usize, Routed::default());
        for r in start..start + n {
            route(*isa, &mut prob.row_mut(r)[..per_expert.len()], per_expert, routed);
            for (pair, chosen) in routes.row_mut(r).chunks_exact_mut(2).zip(&*routed) {
                pair.copy_from_slice(&[chosen.expert as f32, chosen.weight]);
            }
        }
    }

    fn run_experts(&mut self, op: &Op, rows: Rows) {
        let &Op::Experts { x, routes, experts: set, out } = op else { unreachable!("dispatched by kind") };
        let Self { context, buffers, experts: sets, routed, activation, .. } = self;
        let [x, routes, out] = different(buffers, [x, routes, out]);
        let (start, n) = (rows.start, rows.len);
        routed.clear();
        for r in start..start + n {
            let pairs = routes.row(r).chunks_exact(2);
            routed.extend(pairs.map(|pair| Routed { expert: pair[0] as u32, weight: pair[1] }));
        }
        let set = &sets[set.index as usize];
        let routes = Routes { routed, top_k: set.top_k };
        let (x, out) = (x.rows(start, n), out.rows_mut(start, n));
        experts::experts(context, x, *activation, routes, set.weights(), out);
    }

    fn gather_rows(&mut self, rows: Rows, src: Buf, out: Buf) {
        let (from, to) = two(&mut self.buffers, src, out);
        for r in rows.range() {
            to.row_mut(r).copy_from_slice(from.row(self.slots.row_index(rows.set, r)));
        }
    }

    fn tap(&mut self, rows: Rows, x: Buf, out: Buf, column: usize) {
        let (from, to) = two(&mut self.buffers, x, out);
        for r in rows.range() {
            let from = from.row(self.slots.row_index(rows.set, r));
            to.row_mut(r)[column..column + from.len()].copy_from_slice(from);
        }
    }

    fn choose(&mut self, rows: Rows, logits: Buf, softcap: Option<f32>, first_row: usize) {
        let Self { context, buffers, slots, isa, choosing, .. } = self;
        let logits = buffers[logits.index as usize].rows_mut(rows.start - first_row, rows.len).data;
        slots.choose(choosing, *isa, context.team(), logits, rows, softcap);
    }

    fn choose_draft(&mut self, op: &Op, rows: Rows) {
        let &Op::ChooseDraft { logits, softcap, first_row, step } = op else {
            unreachable!("dispatched by kind")
        };
        let Self { context, buffers, slots, isa, choosing, .. } = self;
        let logits = buffers[logits.index as usize].rows_mut(rows.start - first_row, rows.len).data;
        slots.choose_drafts(choosing, (*isa, context.team()), logits, rows, softcap, step as usize);
    }

    fn choose_block(&mut self, op: &Op, rows: Rows) {
        let &Op::ChooseBlock { logits, first_row, softcap, tokens } = op else {
            unreachable!("dispatched by kind")
        };
        let Self { context, buffers, vectors, slots, isa, choosing, .. } = self;
        let logits = &mut buffers[logits.index as usize];
        let Some(tokens) = tokens else {
            let logits = logits.rows_mut(rows.start - first_row, rows.len).data;
            return slots.choose_block(choosing, *isa, context.team(), logits, rows, softcap);
        };
        let tokens = &vectors[tokens.index as usize];
        for r in 0..rows.len {
            let logits = logits.row(rows.start + r - first_row);
            let listed = tokens.iter().zip(logits).map(|(&token, &logit)| (token as u32, logit));
            slots.choose_listed_block(choosing, *isa, Listed { tokens: listed, logits }, rows, r);
        }
    }

    fn cluster_logits(&mut self, op: &Op, rows: Rows) {
        let &Op::ClusterLogits { x, scores, head, clusters, out } = op else {
            unreachable!("dispatched by kind")
        };
        let Self { context, buffers, cluster_heads, activation, top, clusters: chosen, .. } = self;
        let head = &cluster_heads[head.index as usize];
        let [x, scores, clusters, out] = different(buffers, [x, scores, clusters, out]);
        chosen.resize(clusters.width(), 0);
        for r in rows.range() {
            top.largest(scores.row(r), chosen);
            clusters.row_mut(r).iter_mut().zip(&*chosen).for_each(|(to, &cluster)| *to = cluster as f32);
            let x = &x.row(r)[..head.matrix.k()];
            linear_groups(context, x, *activation, &head.matrix, head.groups, chosen, out.row_mut(r));
        }
    }

    fn choose_clustered(&mut self, op: &Op, rows: Rows) {
        let &Op::ChooseClustered { clusters, logits, head, step } = op else {
            unreachable!("dispatched by kind")
        };
        let Self { buffers, cluster_heads, slots, isa, choosing, .. } = self;
        let head = &cluster_heads[head.index as usize];
        let (clusters, logits) = (&buffers[clusters.index as usize], &buffers[logits.index as usize]);
        for r in 0..rows.len {
            let logits = logits.row(rows.start + r);
            let by_cluster = logits.chunks_exact(head.groups.size);
            let tokens =
                clusters.row(rows.start + r).iter().zip(by_cluster).flat_map(|(&cluster, logits)| {
                    let tokens = &head.order[cluster as usize * head.groups.size..];
                    tokens.iter().copied().zip(logits.iter().copied())
                });
            let slot = slots.resolved(rows, r).slot;
            slots.choose_listed_draft(choosing, *isa, Listed { tokens, logits }, slot, step as usize);
        }
    }

    fn keep_committed(&mut self, src: Buf, out: Buf) {
        let (from, to) = two(&mut self.buffers, src, out);
        for (slot, row) in self.slots.kept() {
            to.row_mut(slot.0 as usize).copy_from_slice(from.row(row));
        }
    }

    fn state_commit(&mut self, src: Buf, out: Buf) {
        let (from, to) = two(&mut self.buffers, src, out);
        for (slot, row) in self.slots.kept_rows() {
            to.row_mut(slot.0 as usize).copy_from_slice(from.row(row));
        }
    }

    fn read_slots(&mut self, rows: Rows, src: Buf, out: Buf, column: usize) {
        let (from, to) = two(&mut self.buffers, src, out);
        for r in 0..rows.len {
            let row = self.slots.resolved(rows, r);
            let values = from.row(row.slot.0 as usize);
            let to = &mut to.row_mut(rows.start + r)[column..column + values.len()];
            if row.kv_index == 0 {
                to.fill(0.0);
            } else {
                to.copy_from_slice(values);
            }
        }
    }

    fn write_slots(&mut self, rows: Rows, src: Buf, out: Buf) {
        let (from, to) = two(&mut self.buffers, src, out);
        for r in 0..rows.len {
            let slot = self.slots.resolved(rows, r).slot.0 as usize;
            to.row_mut(slot).copy_from_slice(from.row(rows.start + r));
        }
    }
}
