"""Titles of the sections, their short names in the list of contents, and what each of them shows, in both languages."""

SECTIONS: dict[str, tuple[str, str]] = {
    "memory.title": ("Memory of one device", "장치 하나의 메모리"),
    "memory.short": ("Memory", "메모리"),
    "memory.lead": (
        "What the busiest device holds at its peak, for this layout and with its ZeRO rows moved to each stage."
        " Choose a bar to see its classes.",
        "메모리를 가장 많이 쓰는 장치의 최대 사용량입니다. 이 레이아웃과, ZeRO 단계를 0~3으로 바꾼 경우를 함께"
        " 보여 줍니다. 막대를 선택하면 항목별 값이 나옵니다.",
    ),
    "time.title": ("Where the time of a step goes", "한 스텝의 시간 구성"),
    "time.short": ("Time", "시간"),
    "time.lead": (
        "Predicted for the busiest stage: computing, exchanges that it waits for, and idle time. What runs behind"
        " computing costs nothing and is listed beside it.",
        "가장 바쁜 스테이지의 예측값으로, 계산 시간, 기다려야 하는 통신 시간, 유휴 시간으로 나뉩니다. 계산 뒤에 가려진"
        " 통신은 스텝 시간에 더해지지 않으므로 따로 표시합니다.",
    ),
    "decisions.title": ("Order of decisions", "결정 순서"),
    "decisions.short": ("Decisions", "결정"),
    "decisions.lead": (
        "What a search decides for this run on this cluster: the simplest parallelism first, the next only where an"
        " inequality rules the ones before out.",
        "이 클러스터에서 이 학습에 대해 탐색이 내리는 결정입니다. 가장 단순한 병렬화부터 시작하고, 부등식이 앞의 방법을"
        " 배제할 때만 다음으로 넘어갑니다.",
    ),
    "holders.title": ("Who holds what", "무엇을 누가 갖고 있는가"),
    "holders.short": ("Arrays", "배열"),
    "holders.lead": (
        "Choose an array and a device: the slice that lies there, and every device that holds the same slice.",
        "배열과 장치를 고르면 그 장치가 가진 조각과, 같은 조각을 가진 모든 장치를 보여 줍니다.",
    ),
    "groups.title": ("Rank groups on the nodes", "노드 위의 랭크 그룹"),
    "groups.short": ("Groups", "그룹"),
    "groups.lead": (
        "The devices that a collective over one mesh axis brings together, and the link that it runs on. Devices are"
        " boxed by node.",
        "메시 축 하나에 대한 집합 통신에 함께 참여하는 장치들과, 그 통신이 쓰는 링크입니다. 장치는 노드별로"
        " 묶여 있습니다.",
    ),
    "tensor.title": ("Tensor parallelism: computing against exchange", "텐서 병렬화: 계산 대 통신"),
    "tensor.short": ("Tensor", "텐서"),
    "tensor.lead": (
        "The forward pass of one layer of this model, cut over 1 to 16 devices, on each link of the cluster.",
        "이 모델의 레이어 하나의 순전파를 1~16개 장치로 나눌 때, 클러스터의 링크별 계산 시간과 통신 시간입니다.",
    ),
    "pipeline.title": ("Pipeline schedule", "파이프라인 스케줄"),
    "pipeline.short": ("Pipeline", "파이프라인"),
    "pipeline.lead": (
        "The table that the executor runs: a row for each stage, time from left to right, microbatch numbers in the"
        " cells.",
        "실행기가 실제로 수행하는 표입니다. 행은 스테이지, 왼쪽에서 오른쪽이 시간이며, 칸의 숫자는"
        " 마이크로배치 번호입니다.",
    ),
    "balance.title": ("Balance of attention over the length", "시퀀스 분할에 따른 어텐션 부하 균형"),
    "balance.short": ("Balance", "균형"),
    "balance.lead": (
        "Blocks of queries and keys that each shard of a row computes, counted from the schedule that the ring runs.",
        "시퀀스의 각 샤드가 계산하는 쿼리·키 블록 수입니다. 링이 실제로 수행하는 스케줄에서 셉니다.",
    ),
    "ledger.title": ("Traffic ledger", "통신 장부"),
    "ledger.short": ("Traffic", "통신"),
    "ledger.lead": (
        "Every collective of a step: bytes that one device sends, and how long they take on their link one after the"
        " other, before anything is hidden.",
        "한 스텝의 모든 집합 통신입니다. 장치 하나가 보내는 바이트와, 숨기지 않고 차례로 보낼 때 링크에서 걸리는 시간을"
        " 보여 줍니다.",
    ),
    "notes.title": ("Notes", "참고"),
    "notes.short": ("Notes", "참고"),
    "notes.lead": (
        "Findings on the layout, and what does not apply to it.",
        "레이아웃에 대한 점검 결과와 해당되지 않는 항목입니다.",
    ),
}
