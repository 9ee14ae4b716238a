"""Sentences of the planner, as cost/decisions.py says them, with {names} for what varies: to tell them in Korean.

One sentence may stand in another. What fits none of them is shown as it is.
"""

SENTENCES: dict[str, tuple[str, str]] = {
    "sentence.state": (
        "{count} parameters x {each} bytes (weights {weights}, gradients {grads}, masters and moments {optimizer})"
        " = {state} {sign} {usable} usable of {memory}",
        "파라미터 {count}개 × {each}바이트 (가중치 {weights}, 기울기 {grads}, 마스터와 모멘트 {optimizer})"
        " = {state} {sign} {usable} (전체 {memory} 중 사용 가능)",
    ),
    "sentence.fits": (
        "{name}: {choice} takes {peak} <= {usable}, {time} a step",
        "{name}: {choice}의 메모리 {peak} <= {usable}, 스텝당 {time}",
    ),
    "sentence.just": (
        "{name}: {choice} takes {peak} <= {usable}, {time} a step; just fits: {share} headroom of what is usable",
        "{name}: {choice}의 메모리 {peak} <= {usable}, 스텝당 {time}; 간신히 들어감: 사용 가능량의 {share} 여유",
    ),
    "sentence.but": (
        "{name}: {choice} takes {peak}, but {reason}",
        "{name}: {choice}의 메모리는 {peak}이지만, {reason}",
    ),
    "sentence.refused": (
        "{name}: at least {peak} > {usable} usable ({choice}: state {state}, weights, gradients and their sums"
        " {weights}, activations and the rest {rest})",
        "{name}: 최소 {peak} > {usable} ({choice}: 상태 {state}, 가중치·기울기와 그 합 {weights}, 활성값 등 나머지"
        " {rest})",
    ),
    "sentence.rows": (
        "{name}: {each} rows for each GPU < {least} ({rows} rows a step)",
        "{name}: GPU당 행 수 {each} < {least} (스텝당 {rows}행)",
    ),
    "sentence.no_mesh": (
        "{name}: no mesh of this kind divides devices, batch, heads and length",
        "{name}: 장치·배치·헤드·길이를 나누는 이런 메시가 없음",
    ),
    "sentence.no_fast": (
        "{cluster} has no fast links (fast_gpus=1): stages are preferred to tensor parallelism",
        "{cluster}에는 고속 링크가 없음 (fast_gpus=1): 텐서 병렬화보다 스테이지를 택함",
    ),
    "sentence.too_wide": (
        "{name} is out of the question: the fast links join {number} GPUs",
        "{name}은(는) 불가능: 고속 링크가 GPU {number}대만 이음",
    ),
    "sentence.undivided": (
        "{name} does not divide heads, key heads or MLP",
        "{name}은(는) 헤드, 키 헤드 또는 MLP를 나누지 못함",
    ),
    "sentence.short": (
        "{length} tokens < {least}: rows are not long, and shards of them would be short",
        "{length} < {least} 토큰: 시퀀스가 길지 않아 나누면 너무 짧아짐",
    ),
    "sentence.left": (
        "no layout is free of long waits; the fastest that fits is taken",
        "오래 기다리지 않는 레이아웃이 없어, 들어가는 것 중 가장 빠른 것을 택함",
    ),
    "sentence.experts_without": (
        "{experts}; without a capacity devices would compute {times} times the rows that there are, > {most}",
        "{experts}; 용량 제한이 없으면 장치는 실제 행의 {times}배를 계산함, > {most}",
    ),
    "sentence.experts": (
        "experts have {share} of the parameters, {size} with gradients, masters and moments; a token meets {some} of"
        " {all}",
        "전문가가 파라미터의 {share}를 차지함 (기울기·마스터·모멘트 포함 {size}); 토큰 하나가 {all}개 중"
        " {some}개를 만남",
    ),
    "sentence.stay": (
        "{one} > {share} x {other} without: experts stay with the other weights of their layers",
        "{one} > {share} x {other} (나누지 않을 때): 전문가를 레이어의 다른 가중치와 함께 둠",
    ),
    "sentence.waiting": (
        "weights and gradients are waited for {wait} of {step} a step, {share} > {most}",
        "스텝 {step} 중 {wait} 동안 가중치와 기울기를 기다림, {share} > {most}",
    ),
    "sentence.idling": (
        "stages are idle {share} > {most} of the step ({number})",
        "스테이지의 유휴 비율 {share} > {most} ({number})",
    ),
    "sentence.waiting_experts": (
        "experts' tokens are waited for {wait} of {step} a step, {share} > {most}",
        "스텝 {step} 중 {wait} 동안 전문가의 토큰을 기다림, {share} > {most}",
    ),
    "sentence.wasted": (
        "devices compute {times} times what the model asks for, > {most}: without a capacity all rows of a buffer meet"
        " all experts of a device",
        "장치의 계산량이 모델이 요구하는 양의 {times}배, > {most}: 용량 제한이 없으면 버퍼의 모든 행이 장치의 모든"
        " 전문가를 거침",
    ),
    "sentence.all_wait": (
        "{name}: all wait too long; the fastest, {choice}: {reason}",
        "{name}: 모두 너무 오래 기다림; 가장 빠른 것은 {choice}: {reason}",
    ),
    "sentence.more": (
        "{name}: more than {least} > {usable} usable ({choice}; without activations)",
        "{name}: 최소 {least} > {usable} ({choice}; 활성값 제외)",
    ),
    "sentence.near": (
        "{name}, experts inside the fast links (at most {most})",
        "{name}, 전문가는 고속 링크 안에 (최대 {most})",
    ),
    "sentence.far": ("{name}, experts over the network", "{name}, 전문가는 네트워크 너머로"),
    "said.data parallelism": ("data parallelism", "데이터 병렬화"),
    "said.stages": ("stages", "스테이지"),
    "said.context": ("context", "컨텍스트"),
    "said.the same mesh": ("the same mesh", "같은 메시"),
}
