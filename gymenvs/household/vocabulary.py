"""What there is in the household world: kinds of things, what fits where, and the four kinds of room.

Names are lower case, as the engine prints them. The placement rules and the traits are those of the ALFRED
tasks (https://askforalfred.com); the rooms' make-up follows the AI2-THOR scenes those tasks are set in.
Data only: no rule of the game stands here.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# Two wordings a task type. A generated task draws one; a recorded one keeps its own sentence.
SENTENCES = {
    "pick_and_place_simple": ("put a {object} in {receptacle}", "put some {object} on {receptacle}"),
    "look_at_obj_in_light": ("look at {object} under the {lamp}", "examine the {object} with the {lamp}"),
    "pick_clean_then_place_in_recep": (
        "put a clean {object} in {receptacle}",
        "clean some {object} and put it in {receptacle}",
    ),
    "pick_heat_then_place_in_recep": (
        "put a hot {object} in {receptacle}",
        "heat some {object} and put it in {receptacle}",
    ),
    "pick_cool_then_place_in_recep": (
        "put a cool {object} in {receptacle}",
        "cool some {object} and put it in {receptacle}",
    ),
    "pick_two_obj_and_place": (
        "put two {object} in {receptacle}",
        "find two {object} and put them in {receptacle}",
    ),
}

# Task type -> (state the object must be in, trait it needs for that, kind of receptacle that brings it about).
TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "cleanable", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("hot", "heatable", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "coolable", "fridge"),
}

TRAITS = {
    "cleanable": _kinds("""apple bowl butterknife cloth cup dishsponge egg fork kettle knife ladle lettuce mug pan plate
        pot potato soapbar spatula spoon tomato"""),
    "heatable": _kinds("apple bread cup egg mug plate potato tomato"),
    "coolable": _kinds("apple bowl bread cup egg lettuce mug pan plate pot potato tomato winebottle"),
    "sliceable": _kinds("apple bread egg lettuce potato tomato"),
    "toggleable": frozenset(("desklamp", "floorlamp")),
    "isreceptacleobject": _kinds("bowl box cup mug pan plate pot"),
}
LAMPS = ("desklamp", "floorlamp")
KNIVES = ("knife", "butterknife")
OPENABLE = frozenset(("box", "cabinet", "drawer", "fridge", "microwave", "safe"))

_TABLE = """alarmclock apple baseballbat basketball book bowl box bread butterknife candle cd cellphone cloth
    creditcard cup dishsponge egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug newspaper
    pan papertowel pen pencil peppershaker plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon
    spraybottle statue tennisracket tissuebox toiletpaper toiletpaperroll tomato vase watch wateringcan winebottle"""
_SEAT = """basketball book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol"""
_DRESSER = """alarmclock basketball book bowl box candle cd cellphone cloth creditcard cup glassbottle keychain laptop
    mug newspaper pen pencil plate remotecontrol spraybottle statue tennisracket tissuebox toiletpaper
    toiletpaperroll vase watch wateringcan winebottle"""

# Kind of receptacle -> kinds of object that may be put there.
ACCEPTS = {
    kind: _kinds(objects)
    for kind, objects in {
        "armchair": _SEAT,
        "bathtubbasin": "cloth dishsponge handtowel soapbar",
        "bed": "baseballbat basketball book cellphone laptop newspaper pillow tennisracket",
        "cabinet": """book bowl box candle cd cloth cup dishsponge glassbottle handtowel kettle ladle mug newspaper pan
            peppershaker plate plunger pot saltshaker soapbar soapbottle spraybottle tissuebox toiletpaper
            toiletpaperroll vase wateringcan winebottle""",
        "cart": """candle cloth dishsponge handtowel mug papertowel plunger soapbar soapbottle spraybottle statue
            tissuebox toiletpaper toiletpaperroll vase""",
        "coffeemachine": "mug",
        "coffeetable": _TABLE,
        "countertop": _TABLE,
        "desk": _DRESSER + " soapbottle",
        "diningtable": _TABLE,
        "drawer": """book butterknife candle cd cellphone cloth creditcard dishsponge fork handtowel keychain knife
            ladle newspaper pen pencil peppershaker remotecontrol saltshaker soapbar soapbottle spatula spoon
            spraybottle tissuebox toiletpaper toiletpaperroll watch wateringcan""",
        "dresser": _DRESSER,
        "fridge": "apple bowl bread cup egg glassbottle lettuce mug pan plate pot potato tomato winebottle",
        "garbagecan": """apple bread cd cloth dishsponge egg handtowel lettuce newspaper papertowel pen pencil potato
            soapbar soapbottle spraybottle tissuebox toiletpaper toiletpaperroll tomato winebottle""",
        "handtowelholder": "handtowel",
        "laundryhamper": "cloth",
        "microwave": "apple bowl bread cup egg glassbottle mug plate potato tomato",
        "ottoman": _SEAT,
        "safe": "cd cellphone creditcard keychain statue vase watch",
        "shelf": """alarmclock book bowl box candle cd cellphone cloth creditcard cup dishsponge glassbottle handtowel
            kettle keychain mug newspaper papertowel pen pencil peppershaker plate pot remotecontrol saltshaker soapbar
            soapbottle spraybottle statue tissuebox toiletpaper toiletpaperroll vase watch wateringcan winebottle""",
        "sidetable": _TABLE,
        "sinkbasin": """apple bowl butterknife cloth cup dishsponge egg fork glassbottle handtowel kettle knife ladle
            lettuce mug pan plate pot potato soapbar spatula spoon tomato""",
        "sofa": _SEAT,
        "stoveburner": "kettle pan pot",
        "toilet": """candle cloth dishsponge handtowel newspaper papertowel soapbar soapbottle spraybottle tissuebox
            toiletpaper toiletpaperroll""",
        "toiletpaperhanger": "toiletpaper toiletpaperroll",
        "towelholder": "towel",
        "tvstand": "tissuebox",
    }.items()
}
LAMP_HOLDERS = ("coffeetable", "desk", "dresser", "sidetable")

# Room -> kind of receptacle -> (fewest, most) of it.
ROOM_RECEPTACLES = {
    "kitchen": {
        "cabinet": (2, 9),
        "coffeemachine": (1, 1),
        "countertop": (1, 3),
        "diningtable": (0, 1),
        "drawer": (1, 6),
        "fridge": (1, 1),
        "garbagecan": (1, 1),
        "microwave": (1, 1),
        "shelf": (0, 3),
        "sidetable": (0, 1),
        "sinkbasin": (1, 1),
        "stoveburner": (2, 4),
        "toaster": (1, 1),
    },
    "livingroom": {
        "armchair": (1, 2),
        "cabinet": (0, 4),
        "coffeetable": (1, 2),
        "diningtable": (0, 1),
        "drawer": (0, 6),
        "dresser": (0, 1),
        "garbagecan": (1, 1),
        "ottoman": (0, 1),
        "safe": (0, 1),
        "shelf": (0, 6),
        "sidetable": (1, 3),
        "sofa": (1, 2),
        "tvstand": (0, 1),
    },
    "bedroom": {
        "armchair": (0, 1),
        "bed": (1, 1),
        "cabinet": (0, 3),
        "desk": (1, 2),
        "drawer": (2, 8),
        "dresser": (0, 1),
        "garbagecan": (1, 1),
        "laundryhamper": (0, 1),
        "safe": (0, 1),
        "shelf": (0, 6),
        "sidetable": (1, 2),
    },
    "bathroom": {
        "bathtubbasin": (0, 1),
        "cabinet": (0, 4),
        "cart": (0, 1),
        "countertop": (1, 2),
        "drawer": (0, 4),
        "garbagecan": (1, 1),
        "handtowelholder": (1, 2),
        "shelf": (0, 2),
        "sinkbasin": (1, 2),
        "toilet": (1, 1),
        "toiletpaperhanger": (1, 1),
        "towelholder": (1, 1),
    },
}

ROOM_OBJECTS = {
    "kitchen": tuple(
        _words("""apple bowl bread butterknife cup dishsponge egg fork glassbottle kettle knife ladle lettuce mug pan
        peppershaker plate pot potato saltshaker soapbottle spatula spoon tomato winebottle""")
    ),
    "livingroom": tuple(
        _words("""book bowl box candle cellphone creditcard keychain laptop newspaper pen pencil pillow plate
        remotecontrol statue tissuebox vase watch wateringcan""")
    ),
    "bedroom": tuple(
        _words("""alarmclock baseballbat basketball book bowl box cd cellphone cloth creditcard keychain laptop mug pen
        pencil pillow statue tennisracket tissuebox vase watch""")
    ),
    "bathroom": tuple(
        _words("""candle cloth dishsponge handtowel plunger soapbar soapbottle spraybottle tissuebox
        toiletpaper towel""")
    ),
}

# Task type -> rooms it is set in.
TASK_ROOMS = {
    "pick_and_place_simple": ("kitchen", "livingroom", "bedroom", "bathroom"),
    "look_at_obj_in_light": ("livingroom", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "livingroom", "bedroom", "bathroom"),
}


def traits_of(kind: str) -> tuple[str, ...]:
    """The traits of an object kind, in alphabetical order; all kinds but lamps can be picked up."""
    traits = [trait for trait, kinds in TRAITS.items() if kind in kinds]
    if kind not in LAMPS:
        traits.append("pickupable")
    return tuple(sorted(traits))
